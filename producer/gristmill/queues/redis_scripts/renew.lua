-- Begin Leases anew that have not ended and belong to this consumer.
-- KEYS stream; ARGV group, consumer, then entry and deliveries of each
-- Returns which of them are still owned, counted from 1.
local owned = {}
for n = 3, #ARGV, 2 do
  if is_owned(KEYS[1], ARGV[1], ARGV[2], ARGV[n], ARGV[n + 1]) then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[n], 'JUSTID')
    owned[#owned + 1] = (n - 1) / 2
  end
end
return owned
