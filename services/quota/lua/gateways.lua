-- ARGV[4]: the id of a gateway that lives; ARGV[5]: ms after which one counts as gone.
-- Reply: the number of gateways that live.

redis.call('ZADD', ROOT, whole(NOW), ARGV[4])
redis.call('ZREMRANGEBYSCORE', ROOT, '-inf', whole(NOW - tonumber(ARGV[5])))
redis.call('PEXPIRE', ROOT, ARGV[5])
return redis.call('ZCARD', ROOT)
