-- Creates a batch. ARGV from 6 on: its fields and their values.
-- Reply: empty when it is done; else too_many or full.
local num_bytes = OBJECT_BYTES
for i = 6, #ARGV do num_bytes = num_bytes + #ARGV[i] end
local reason = refusal(num_bytes)
if reason ~= '' then return reason end
for i = 6, #ARGV, 2 do redis.call('HSET', RECORD, ARGV[i], ARGV[i + 1]) end
redis.call('ZADD', BATCHES, NOW, ID)
charge(ID, num_bytes)
return ''
