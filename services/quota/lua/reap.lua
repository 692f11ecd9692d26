-- Reply: the number of leases of the tenant that lapsed (MAX_REAPED means that there may be more), and
-- the time at which the next one expires, in ms; 0 = the tenant holds none.

local num_reaped = reap()
save_accounts()
local first = redis.call('ZRANGE', LEASES, 0, 0, 'WITHSCORES')
return {num_reaped, tonumber(first[2] or 0)}
