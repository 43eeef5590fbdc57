-- Give out messages that fit: those released, those whose Lease ended, then new ones.
-- KEYS a stream for each Lane; ARGV group, consumer, lease_ms, messages, rows, tokens at most
-- Returns {{n of the Lane, entry, deliveries, body} …} and, when that is empty, the last id of each
-- stream: what comes after it is worth another look.
local group, me, lease_ms = ARGV[1], ARGV[2], ARGV[3]
local messages, rows, tokens = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local taken, is_full = {}, false

local function has_room_for(fields)
  local num_rows, num_tokens = tonumber(fields.r or 1), tonumber(fields.t or 0)
  if messages < 1 or rows <= 0 or tokens <= 0
    or (#taken > 0 and (num_rows > rows or num_tokens > tokens)) then
    is_full = true
    return false
  end
  messages, rows, tokens = messages - 1, rows - num_rows, tokens - num_tokens
  return true
end

local function claim(n, entry, deliveries)
  local fields = fields_of(KEYS[n], entry)
  if not fields then  -- somebody deleted it under its Lease
    redis.call('XACK', KEYS[n], group, entry)
  elseif has_room_for(fields) then
    redis.call('XCLAIM', KEYS[n], group, me, 0, entry)
    taken[#taken + 1] = {n, entry, deliveries + 1, fields.b}
  end
end

local function take_released(n)
  local due = redis.call('XPENDING', KEYS[n], group, 'IDLE', DUE_MS, '-', '+', PAGE, RELEASED)
  for _, found in ipairs(due) do
    if is_full then return end
    claim(n, found[1], found[4])
  end
end

local function take_ended(n)
  local start = '-'
  repeat
    local page = redis.call('XPENDING', KEYS[n], group, 'IDLE', lease_ms, start, '+', PAGE)
    for _, found in ipairs(page) do
      if is_full then return end
      if found[2] ~= RELEASED and not is_held(found[2], found[3]) then
        claim(n, found[1], found[4])
      end
      start = '(' .. found[1]
    end
  until #page < PAGE
end

local function take_new(n)
  if messages < 1 then return end
  local after = '(' .. last_delivered(KEYS[n], group)
  local num_taken = 0
  for _, found in ipairs(redis.call('XRANGE', KEYS[n], after, '+', 'COUNT', messages)) do
    local fields = to_map(found[2])
    if not has_room_for(fields) then break end
    num_taken = num_taken + 1
    taken[#taken + 1] = {n, found[1], 1, fields.b}
  end
  if num_taken > 0 then
    redis.call('XREADGROUP', 'GROUP', group, me, 'COUNT', num_taken, 'STREAMS', KEYS[n], '>')
  end
end

for n = 1, #KEYS do
  if not is_full then take_released(n) end
  if not is_full then take_ended(n) end
  if not is_full then take_new(n) end
end

local last_ids = {}
if #taken == 0 then
  for n = 1, #KEYS do
    last_ids[n] = to_map(redis.call('XINFO', 'STREAM', KEYS[n]))['last-generated-id']
  end
end
return {taken, last_ids}
