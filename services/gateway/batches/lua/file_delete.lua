-- Deletes a file. Reply: 1, or 0 when there is none.
if redis.call('HEXISTS', FILES, ID) == 0 then return 0 end
drop(ID)
return 1
