# What every script of ours begins with. `folder` is that of its kind, and `marker` that of this one order.
set -eu
proc=/proc
marker=$folder/{{ marker }}
evidence='{{ evidence }}'
mkdir -p "$folder"
find "$folder" -type f -mmin +2880 -delete
