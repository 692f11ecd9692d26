-- Takes, renews or gives back the lease of a batch that has not ended. Of all tenants:
--   OPEN     batches that have not ended, by the time until which their lease holds
--   HOLDERS  the gateway that has the lease, by batch
-- ARGV: the batch, the gateway, now, and the time until which the lease will hold.
-- Reply: empty when it is done; else gone, or held: another gateway has it.
local OPEN, HOLDERS = KEYS[1], KEYS[1] .. ':holders'
local BATCH, GATEWAY, NOW, UNTIL = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local until_s = redis.call('ZSCORE', OPEN, BATCH)
if not until_s then return 'gone' end
if redis.call('HGET', HOLDERS, BATCH) ~= GATEWAY and tonumber(until_s) > NOW then return 'held' end
redis.call('ZADD', OPEN, UNTIL, BATCH)
redis.call('HSET', HOLDERS, BATCH, GATEWAY)
return ''
