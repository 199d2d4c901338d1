#!/bin/sh
# How a service is doing, in a few lines of shell: the requests it has logged, of which the agent makes the rate.
#
#   requests.sh LOG [OBJECTIVE]
set -eu
lines=0
tail -n 0 -F "$1" | while read -r _; do
  lines=$((lines + 1))
  now=$(date +%s)
  [ "$now" = "${last-}" ] || echo "served_total=$lines${2:+ objective=$2}"
  last=$now
done | elbowroom probe send -
