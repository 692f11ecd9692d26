-- Writes the result of one line of a batch, unless it has one. ARGV[6] to [9]: the number of the
-- line, the file that its result goes to, the result, and the count that it is part of; then more
-- counts, each with what is added.
-- Reply: empty when it is done; else done (it had one), gone, or the status of the batch.
local NUMBER, FILE, RESULT, COUNT = ARGV[6], ARGV[7], ARGV[8], ARGV[9]
local status = redis.call('HGET', RECORD, 'status')
if not status then return 'gone' end
if status ~= 'in_progress' then return status end
if redis.call('SETBIT', RECORD .. ':done', NUMBER, 1) == 1 then return 'done' end
redis.call('APPEND', ROOT .. ':' .. FILE .. ':content', RESULT)
redis.call('HINCRBY', RECORD, COUNT, 1)
for i = 10, #ARGV, 2 do redis.call('HINCRBY', RECORD, ARGV[i], ARGV[i + 1]) end
charge(FILE, #RESULT)
charge(ID, 0)
return ''
