#!/bin/sh
# Installs the system tools that some tests judge with: a browser, kcat, shellcheck and Prometheus
# (Debian, Ubuntu).
set -eu
missing=""
command -v chromium >/dev/null 2>&1 || missing="$missing chromium"
command -v kcat >/dev/null 2>&1 || missing="$missing kcat"
command -v shellcheck >/dev/null 2>&1 || missing="$missing shellcheck"
command -v promtool >/dev/null 2>&1 || missing="$missing prometheus"
[ -z "$missing" ] && exit 0
command -v apt-get >/dev/null 2>&1 || {
  echo "APT=yes needs apt-get, which this machine lacks; install$missing by hand" >&2
  exit 1
}
run=""
[ "$(id -u)" = 0 ] || run="sudo"
echo "installing$missing"
$run apt-get update -qq
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive $run apt-get install -qq -y --no-install-recommends $missing >/dev/null
