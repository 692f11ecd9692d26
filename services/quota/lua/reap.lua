-- Reply: how many expired leases of the tenant lapsed; MAX_REAPED means that there may be more.

local num_reaped = reap()
save_accounts()
return num_reaped
