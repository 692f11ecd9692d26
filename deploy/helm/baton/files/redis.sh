# The bundled Redis, whose password is a file of a Secret: no argument and no variable has it.
umask 077
{
    cat /etc/baton/redis/redis.conf
    sed 's/[\\"]/\\&/g; s/.*/requirepass "&"/' /etc/baton/redis/password
} >/tmp/redis.conf
exec valkey-server /tmp/redis.conf
