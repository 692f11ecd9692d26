-- KEYS[1] is the agenda: a sorted set of tenants that hold leases, by the time in ms of the next look.
-- ARGV[4]: how many tenants to take. ARGV[5..]: tenants that got leases; those that the agenda lacks
-- are due at once. Reply: tenants that are due, which leave the agenda.
-- Its caller looks at each and then puts it back with its next time. A lease that comes meanwhile
-- puts its tenant on the agenda after the look began, so that none is forgotten.

for i = 5, #ARGV do redis.call('ZADD', KEYS[1], 'NX', whole(NOW), ARGV[i]) end
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', whole(NOW), 'LIMIT', 0, tonumber(ARGV[4]))
if #due > 0 then redis.call('ZREM', KEYS[1], unpack(due)) end
return due
