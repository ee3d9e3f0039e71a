#!/bin/sh
# run_together.sh ENVIRONMENT PYTHON FOLDER LGPUD LIBLGPU LIBRARY ORDER: together.py against a daemon of its own, by the
# environment's Python, or by PYTHON where there is none.
environment=$1 python=$2 folder=$3 lgpud=$4 liblgpu=$5
shift 5
runner=$python
if [ -x "$environment/bin/python" ]; then runner=$environment/bin/python; fi
exec "$python" "$folder/../support/with_daemon.py" --lgpud "$lgpud" -- "$runner" "$folder/together.py" "$liblgpu" "$@"
