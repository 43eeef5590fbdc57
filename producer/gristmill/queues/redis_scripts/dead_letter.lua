-- Put a message aside for people; of these only so many are kept.
-- KEYS stream, ids, dead; ARGV group, consumer, entry, deliveries, reason, how many to keep
local stream, ids, dead, group, entry = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[3]
if not is_owned(stream, group, ARGV[2], entry, ARGV[4]) then return 0 end
local fields = fields_of(stream, entry)
if fields then
  redis.call('XADD', dead, 'MAXLEN', '~', ARGV[6], '*',
             'b', fields.b, 'i', fields.i or '', 'from', entry, 'why', ARGV[5])
end
remove(stream, ids, group, entry)
return 1
