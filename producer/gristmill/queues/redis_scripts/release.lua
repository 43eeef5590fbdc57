-- Let a message wait again, to be taken after a delay.
-- KEYS stream; ARGV group, consumer, entry, deliveries, delay_ms
if not is_owned(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]) then return 0 end
put_back(KEYS[1], ARGV[1], ARGV[3], tonumber(ARGV[5]))
return 1
