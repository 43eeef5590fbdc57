-- Find ghosts: entries that were given out and are in no pending list (somebody deleted their
-- consumer, or acknowledged by hand); and forget consumers that have nothing and are silent.
-- KEYS stream; ARGV group, silent_ms
-- Returns how many of each.
local stream, group = KEYS[1], ARGV[1]
local last = last_delivered(stream, group)
if not last then return {0, 0} end

local num_ghosts, start = 0, '-'
repeat
  local page = redis.call('XRANGE', stream, start, last, 'COUNT', PAGE)
  local is_pending = {}
  if #page > 0 then
    local first, final = page[1][1], page[#page][1]
    for _, found in ipairs(redis.call('XPENDING', stream, group, first, final, 2 * PAGE)) do
      is_pending[found[1]] = true
    end
  end
  for _, found in ipairs(page) do
    if not is_pending[found[1]] and not pending_of(stream, group, found[1]) then
      put_back(stream, group, found[1], 0)
      num_ghosts = num_ghosts + 1
    end
    start = '(' .. found[1]
  end
until #page < PAGE

local num_consumers = 0
for _, flat in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
  local consumer = to_map(flat)
  if consumer.pending == 0 and consumer.idle > tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', stream, group, consumer.name)
    num_consumers = num_consumers + 1
  end
end
return {num_ghosts, num_consumers}
