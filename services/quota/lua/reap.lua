-- Reply: the number of leases of the tenant that lapsed; MAX_REAPED means that there may be more.

local num_reaped = reap()
save_accounts()
return num_reaped
