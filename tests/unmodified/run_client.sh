#!/bin/sh
# run_client.sh ENVIRONMENT COMMAND ...: runs a command that needs the environment. 77: scripts/python-env has not made it.
if [ ! -e "$1/complete" ]; then
  echo "skipped: $1 is not complete; scripts/python-env with its requirements.txt makes it"
  exit 77
fi
shift
exec "$@"
