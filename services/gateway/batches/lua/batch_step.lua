-- Changes a batch that has one of the statuses in ARGV[6] (with commas around each). ARGV from 7
-- on: fields and their values. Reply: empty when it is done; else gone or the status of the batch.
local status = redis.call('HGET', RECORD, 'status')
if not status then return 'gone' end
if not string.find(ARGV[6], ',' .. status .. ',', 1, true) then return status end
for i = 7, #ARGV, 2 do redis.call('HSET', RECORD, ARGV[i], ARGV[i + 1]) end
charge(ID, 0)
return ''
