-- Count what lies on a Lane, without looking at the Leases that have not ended.
-- KEYS stream, dead; ARGV group
-- Returns waiting, leased, dead, and the age of the oldest waiting message in ms or -1.
local stream, group = KEYS[1], ARGV[1]
local num_leased, oldest = 0, nil

local function see_waiting(entry)
  if (not oldest or is_after(oldest, entry)) and fields_of(stream, entry) then oldest = entry end
end

local last = last_delivered(stream, group)
if last then
  local summary = redis.call('XPENDING', stream, group)
  local shortest_ms = math.huge
  num_leased = summary[1]
  for _, found in ipairs(summary[4] or {}) do
    if found[1] == RELEASED then
      num_leased = num_leased - found[2]
    else
      shortest_ms = math.min(shortest_ms, lease_ms_of(found[1]))
    end
  end
  for _, found in ipairs(redis.call('XPENDING', stream, group, '-', '+', PAGE, RELEASED)) do
    see_waiting(found[1])
  end
  local start = '-'
  repeat
    local page = {}
    if shortest_ms < math.huge then
      page = redis.call('XPENDING', stream, group, 'IDLE', shortest_ms, start, '+', PAGE)
    end
    for _, found in ipairs(page) do
      if found[2] ~= RELEASED and not is_held(found[2], found[3]) then
        num_leased = num_leased - 1
        see_waiting(found[1])
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
