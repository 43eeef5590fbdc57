-- Count what lies on a Lane.
-- KEYS stream, dead; ARGV group
-- Returns waiting, leased, dead, and the age of the oldest waiting message in ms or -1.
local stream, group = KEYS[1], ARGV[1]
local num_leased, oldest = 0, nil
local last = last_delivered(stream, group)
if last then
  local start = '-'
  repeat
    local page = redis.call('XPENDING', stream, group, start, '+', PAGE)
    for _, found in ipairs(page) do
      if is_held(found[2], found[3]) then
        num_leased = num_leased + 1
      elseif not oldest and fields_of(stream, found[1]) then
        oldest = found[1]
      end
      start = '(' .. found[1]
    end
  until #page < PAGE
end
if not oldest then
  local fresh = redis.call('XRANGE', stream, last and '(' .. last or '-', '+', 'COUNT', 1)
  oldest = fresh[1] and fresh[1][1]
end
local age_ms = -1
if oldest then
  local now = redis.call('TIME')
  age_ms = math.max(0, now[1] * 1000 + math.floor(now[2] / 1000) - string.match(oldest, '%d+'))
end
local num_waiting = math.max(0, redis.call('XLEN', stream) - num_leased)
return {num_waiting, num_leased, redis.call('XLEN', KEYS[2]), age_ms}
