BEGIN TRANSACTION;
CREATE TABLE batches (
	id VARCHAR NOT NULL, 
	tenant_id VARCHAR NOT NULL, 
	status VARCHAR NOT NULL, 
	endpoint VARCHAR, 
	model_name VARCHAR NOT NULL, 
	model_revision VARCHAR NOT NULL, 
	tokenizer_hash VARCHAR NOT NULL, 
	dtype VARCHAR NOT NULL, 
	seed VARCHAR NOT NULL, 
	input_fingerprint VARCHAR NOT NULL, 
	options JSON NOT NULL, 
	run_id VARCHAR NOT NULL, 
	ingest_byte_offset BIGINT NOT NULL, 
	ingest_line_no BIGINT NOT NULL, 
	ingest_row_idx BIGINT NOT NULL, 
	num_slices BIGINT NOT NULL, 
	num_shards BIGINT NOT NULL, 
	total BIGINT NOT NULL, 
	completed BIGINT NOT NULL, 
	failed BIGINT NOT NULL, 
	prompt_tokens BIGINT NOT NULL, 
	completion_tokens BIGINT NOT NULL, 
	cached_tokens BIGINT NOT NULL, 
	ttft JSON NOT NULL, 
	itl JSON NOT NULL, 
	last_accepted BIGINT NOT NULL, 
	errors JSON NOT NULL, 
	num_errors BIGINT NOT NULL, 
	freeze_reason VARCHAR, 
	merged_slices BIGINT NOT NULL, 
	num_output_lines BIGINT NOT NULL, 
	num_error_lines BIGINT NOT NULL, 
	output_file_id VARCHAR, 
	error_file_id VARCHAR, 
	created_at BIGINT NOT NULL, 
	expires_at BIGINT, 
	in_progress_at BIGINT, 
	finalizing_at BIGINT, 
	completed_at BIGINT, 
	failed_at BIGINT, 
	expired_at BIGINT, 
	cancelling_at BIGINT, 
	cancelled_at BIGINT, 
	PRIMARY KEY (id)
);
INSERT INTO "batches" VALUES('batch_1','acme','validating',NULL,'m','r','t','float32','s','f','{}','run-1',0,0,0,0,0,3,0,0,0,0,0,'{}','{}',0,'[]',0,NULL,0,0,0,NULL,NULL,5,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE files (
	id VARCHAR NOT NULL, 
	tenant_id VARCHAR NOT NULL, 
	purpose VARCHAR NOT NULL, 
	filename VARCHAR NOT NULL, 
	num_bytes BIGINT NOT NULL, 
	created_at BIGINT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "files" VALUES('file-1','acme','batch_output','x.jsonl',1,1);
CREATE TABLE segments (
	batch_id VARCHAR NOT NULL, 
	number BIGINT NOT NULL, 
	tenant_id VARCHAR NOT NULL, 
	shard_n INTEGER NOT NULL, 
	attempt_id VARCHAR NOT NULL, 
	seq INTEGER NOT NULL, 
	num_results INTEGER NOT NULL, 
	PRIMARY KEY (batch_id, number), 
	UNIQUE (batch_id, shard_n, attempt_id, seq)
);
INSERT INTO "segments" VALUES('batch_1',1,'acme',0,'att-1',0,1);
CREATE TABLE shards (
	batch_id VARCHAR NOT NULL, 
	n INTEGER NOT NULL, 
	tenant_id VARCHAR NOT NULL, 
	slice INTEGER NOT NULL, 
	num_jobs INTEGER NOT NULL, 
	num_rows INTEGER NOT NULL, 
	num_prompt_tokens BIGINT NOT NULL, 
	state VARCHAR NOT NULL, 
	accepted BLOB NOT NULL, 
	num_accepted BIGINT NOT NULL, 
	sent_at BIGINT, 
	ring_at BIGINT, 
	num_rings BIGINT NOT NULL, 
	PRIMARY KEY (batch_id, n)
);
INSERT INTO "shards" VALUES('batch_1',0,'acme',0,3,3,9,'waiting',X'00',0,NULL,NULL,0);
CREATE INDEX batches_by_status ON batches (status, id);
CREATE INDEX shards_by_state ON shards (state, batch_id, n);
CREATE INDEX shards_by_slice ON shards (batch_id, slice, n);
COMMIT;
PRAGMA application_id = 1735553908;
PRAGMA user_version = 1;
