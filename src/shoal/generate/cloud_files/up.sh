#!/bin/sh
# Create one machine in each zone, and run a broker and a controller on each of them.
#   sh up.sh shoal-VERSION-py3-none-any.whl
# Needs: the provider's command line tool (logged in), ssh, scp, and shoal on this machine.
set -eu
here="$(cd "$(dirname "$0")" && pwd)"
wheel="${1:?usage: sh up.sh WHEEL, as python -m hatchling build -t wheel makes it}"
[ -f "$wheel" ] || { echo "$wheel: no such file" >&2; exit 1; }
# shellcheck source=/dev/null
. "$here/settings.sh"
# shellcheck source=/dev/null
. "$here/provider.sh"

remote() { # remote ADDRESS COMMAND: over ssh, without a terminal
  address="$1"
  shift
  ssh -n -o BatchMode=yes -o StrictHostKeyChecking=accept-new -o ConnectTimeout=10 \
    -i "$SSH_KEY" "$SSH_USER@$address" "$@"
}

wait_for_machine() { # wait_for_machine ADDRESS: until its first start is complete
  tries=0
  until remote "$1" cloud-init status --wait; do
    tries=$((tries + 1))
    [ "$tries" -lt 60 ] || { echo "$1 does not answer over ssh" >&2; exit 1; }
    sleep "${RETRY_SECONDS:-5}"
  done
}

create_network
number=0
for zone in $ZONES; do
  number=$((number + 1))
  create_machine "$number" "$zone"
done

number=0
hosts=""
bootstrap=""
private_addresses=""
public_addresses=""
for zone in $ZONES; do
  number=$((number + 1))
  pair="$(print_addresses "$number" "$zone")"
  private="$(echo "$pair" | awk 'NR == 1 { print $1 }')"
  public="$(echo "$pair" | awk '{ last = $NF } END { print last }')"
  if [ -z "$private" ] || [ -z "$public" ]; then
    echo "machine $number has no address" >&2
    exit 1
  fi
  hosts="$hosts${hosts:+,}$private@$zone"
  bootstrap="$bootstrap${bootstrap:+,}$private:9092"
  private_addresses="$private_addresses $private"
  public_addresses="$public_addresses $public"
done

shoal generate systemd --name "$NAME" --hosts "$hosts" --out "$here/hosts" --force

# shellcheck disable=SC2086 # one word for each machine
set -- $private_addresses
for public in $public_addresses; do
  wait_for_machine "$public"
  scp -q -r -o BatchMode=yes -o StrictHostKeyChecking=accept-new -i "$SSH_KEY" \
    "$wheel" "$here/hosts" "$SSH_USER@$public:"
  remote "$public" "sudo /opt/shoal/bin/pip install --quiet ./$(basename "$wheel")"
  remote "$public" "sudo sh hosts/install.sh $1"
  shift
done

number=0
# shellcheck disable=SC2086 # one word for each machine
set -- $private_addresses
for public in $public_addresses; do
  number=$((number + 1))
  remote "$public" "/opt/shoal/bin/shoal ready --id $number $1:9092 --wait 300"
  shift
done

echo "bootstrap.servers=$bootstrap"
echo "these addresses are private: clients run in the same network, for example on" \
  "$SSH_USER@${public_addresses##* }" >&2
