# The bundled Redis, whose password is a file of a Secret: no argument and no variable has it.
umask 077
{
    cat /etc/baton/redis/redis.conf
    sed 's/[\\"]/\\&/g; s/.*/requirepass "&"/' /etc/baton/redis/password
} >/tmp/redis.conf
# Certificates that were renewed are read when it is told to. The password is a variable of that command alone.
renew() {
    REDISCLI_AUTH=$(cat /etc/baton/redis/password) valkey-cli -e -s /tmp/redis.sock CONFIG SET \
        tls-cert-file /etc/baton/tls/tls.crt tls-key-file /etc/baton/tls/tls.key tls-ca-cert-file /etc/baton/tls/ca.crt
}
if [ -e /etc/baton/tls/tls.crt ]; then
    (
        seen=$(cksum /etc/baton/tls/*)
        while sleep 30; do
            now=$(cksum /etc/baton/tls/*)
            if [ "$now" != "$seen" ] && renew; then
                seen=$now
            fi
        done
    ) &
fi
exec valkey-server /tmp/redis.conf
