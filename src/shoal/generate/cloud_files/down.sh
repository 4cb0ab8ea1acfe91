#!/bin/sh
# Delete everything that up.sh created, with all data.
#   sh down.sh
set -eu
here="$(cd "$(dirname "$0")" && pwd)"
# shellcheck source=/dev/null
. "$here/settings.sh"
# shellcheck source=/dev/null
. "$here/provider.sh"
delete_everything
