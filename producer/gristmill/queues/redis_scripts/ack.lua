-- Remove messages whose Lease has not ended and belongs to this consumer.
-- KEYS stream, ids; ARGV group, consumer, then entry and deliveries of each
-- Returns how many.
local num_removed = 0
for n = 3, #ARGV, 2 do
  if is_owned(KEYS[1], ARGV[1], ARGV[2], ARGV[n], ARGV[n + 1]) then
    remove(KEYS[1], KEYS[2], ARGV[1], ARGV[n])
    num_removed = num_removed + 1
  end
end
return num_removed
