"""From the lines of an input file to Jobs: read, check, tokenise. Nothing is stored or run here.

reader          bytes → physical lines
envelope        a line → Request, or the LineError that fails the batch
seen            which custom_ids the file has used
input_file      all of the file: stretches of Requests, or BatchInvalid
bodies          a Request's body → validated fields, or RowRefused for that row alone
structured      the fields that say what an answer looks like → Grammar
tools           functions that may be called, and calls that were made; messages: all of a chat
embeddings      the body of /v1/embeddings, and its Job
unsupported     the fields of the API that come later, and their neutral values
control_tokens  keeps special tokens that user text spells out from being read as such
tokenise        chat template and text → token ids
grammars        whether a grammar compiles for this model, remembered
constrain       what a body's wishes for its answer mean for this model
window          token ids and parameters → Jobs, merged and ordered, and Refusals
prepare         all of it, window by window: the door that ingest uses
check           what `gristmill run --dry-run` prints
"""
