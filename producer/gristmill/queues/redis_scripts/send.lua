-- Put a message at the end of a Lane, unless one of the same id waits there.
-- KEYS stream, ids; ARGV group, body, message id or '', rows, tokens, 1 to make the Lane if need be
local stream, ids, group = KEYS[1], KEYS[2], ARGV[1]
local body, id, rows, tokens = ARGV[2], ARGV[3], ARGV[4], ARGV[5]

if ARGV[6] == '0' and redis.call('EXISTS', stream) == 0 then return 0 end

local function waits(entry)
  if not fields_of(stream, entry) then return false end
  local consumer, idle = pending_of(stream, group, entry)
  if consumer then return not is_held(consumer, idle) end
  local last = last_delivered(stream, group)
  if last and not is_after(entry, last) then put_back(stream, group, entry, 0) end  -- a ghost
  return true
end

if id ~= '' then
  local entry = redis.call('HGET', ids, id)
  if entry and waits(entry) then return 0 end
end
local fields = {'b', body, 'r', rows, 't', tokens}
if id ~= '' then
  fields[7], fields[8] = 'i', id
end
local entry = redis.call('XADD', stream, '*', unpack(fields))
if id ~= '' then redis.call('HSET', ids, id, entry) end
return 1
