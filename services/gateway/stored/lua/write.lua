-- Creates or changes an object. ARGV from 7 on: the condition (any; open: it has not ended; dead:
-- nor is its gateway alive; new: it is dead, or not there; same: it is open, and has these fields
-- with these values already), the seconds for which it is alive from now, the id of an event and
-- the event (empty: none), then fields and their values.
-- Reply: empty when it is done; else the status of the response, or gone or too_large.
local CONDITION, ALIVE_S, EVENT_ID, EVENT = ARGV[7], tonumber(ARGV[8]), ARGV[9], ARGV[10]
local EVENTS_FACTOR = 4
local status = redis.call('HGET', OBJECT, 'status')

if CONDITION ~= 'any' and (status or CONDITION ~= 'new') then
  if not status then return 'gone' end
  if status ~= 'queued' and status ~= 'in_progress' then return status end
  if CONDITION == 'same' and not has_all(11) then return 'gone' end
  local needs_dead = CONDITION == 'dead' or CONDITION == 'new'
  if needs_dead and redis.call('EXISTS', OBJECT .. ':alive') == 1 then return status end
end

local more = #EVENT
for i = 11, #ARGV, 2 do
  more = more + #ARGV[i + 1] - redis.call('HSTRLEN', OBJECT, ARGV[i])
end
if redis.call('EXISTS', OBJECT) == 0 then more = more + OBJECT_BYTES end
-- Events are as large again: each repeats where its text belongs.
local event_bytes = tonumber(redis.call('HGET', OBJECT, 'event_bytes') or 0) + #EVENT
local is_too_large = event_bytes > EVENTS_FACTOR * MAX_OBJECT_BYTES
  or size_with(more) - event_bytes > MAX_OBJECT_BYTES
if more > 0 and is_too_large then return 'too_large' end

if EVENT ~= '' then
  redis.call('HSET', OBJECT, 'event_bytes', event_bytes)
  -- It is there already when the reply to its first write was lost.
  redis.pcall('XADD', OBJECT .. ':events', EVENT_ID, 'events', EVENT)
end
for i = 11, #ARGV, 2 do
  redis.call('HSET', OBJECT, ARGV[i], ARGV[i + 1])
end
if ALIVE_S > 0 then redis.call('SET', OBJECT .. ':alive', 1, 'EX', ALIVE_S) end
if #ARGV > 10 or EVENT ~= '' then charge(more) end
return ''
