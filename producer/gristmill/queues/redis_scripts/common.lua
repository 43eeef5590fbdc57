-- What the scripts share; each is run with this text before its own.
--
-- A Lane is a stream with one consumer group. Fields of an entry: b body, i message id, r rows,
-- t tokens. All that is true of Leases stands in the group's pending list, on the server's clock:
--
--   consumer HOST-PID-RANDOM:LEASE_MS   a Lease; it ends when the entry was idle for LEASE_MS
--   consumer RELEASED                   waits, and can be taken when it was idle for DUE_MS; a
--                                       delay is set by starting with so much less
--
-- The delivery count only tells two Leases of one consumer on one entry apart. Nothing here but
-- send and dead_letter needs memory, so that work goes on and drains while the server is full.

local RELEASED = 'released'
local DUE_MS = 43200000  -- MAX_DELAY_S
local PAGE = 100

local function to_map(flat)
  local map = {}
  for n = 1, #flat, 2 do map[flat[n]] = flat[n + 1] end
  return map
end

local function fields_of(stream, entry)
  local found = redis.call('XRANGE', stream, entry, entry)
  return found[1] and to_map(found[1][2])
end

-- Whether a comes after b. Both are MS-SEQ.
local function is_after(a, b)
  local a_ms, a_seq = string.match(a, '(%d+)-(%d+)')
  local b_ms, b_seq = string.match(b, '(%d+)-(%d+)')
  if a_ms == b_ms then return tonumber(a_seq) > tonumber(b_seq) end
  return tonumber(a_ms) > tonumber(b_ms)
end

-- Consumer, idle time and delivery count; nil where there is no entry, no group or no stream.
local function pending_of(stream, group, entry)
  local found = redis.pcall('XPENDING', stream, group, entry, entry, 1)
  if found.err then
    if string.find(found.err, 'NOGROUP', 1, true) then return nil end
    error(found.err, 0)
  end
  if found[1] then return found[1][2], found[1][3], found[1][4] end
end

-- How long this consumer's Leases last; one that was not made by us has none.
local function lease_ms_of(consumer)
  return tonumber(string.match(consumer, ':(%d+)$') or 0)
end

-- Whether a Lease of this consumer has not ended.
local function is_held(consumer, idle)
  return idle < lease_ms_of(consumer)
end

local function is_owned(stream, group, me, entry, deliveries)
  local consumer, idle, count = pending_of(stream, group, entry)
  return consumer == me and count == tonumber(deliveries) and is_held(consumer, idle)
end

-- The last entry that was given out; nil without a group.
local function last_delivered(stream, group)
  if redis.call('EXISTS', stream) == 0 then return nil end
  for _, flat in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local found = to_map(flat)
    if found.name == group then return found['last-delivered-id'] end
  end
end

-- Let an entry wait that is in no pending list, or give one back.
local function put_back(stream, group, entry, delay_ms)
  redis.call('XCLAIM', stream, group, RELEASED, 0, entry,
             'IDLE', DUE_MS - delay_ms, 'FORCE', 'JUSTID')
end

local function remove(stream, ids, group, entry)
  local fields = fields_of(stream, entry)
  redis.call('XACK', stream, group, entry)
  redis.call('XDEL', stream, entry)
  if fields and fields.i and redis.call('HGET', ids, fields.i) == entry then
    redis.call('HDEL', ids, fields.i)
  end
end
