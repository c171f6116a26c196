# gpu-recovery last look key={{ key }}
# Run by the SSM agent as root before the machine is taken away for good: keep what it knows. It changes nothing.
set -eu
proc=/proc
folder=/var/lib/gpu-recovery/looks
marker=$folder/{{ marker }}
evidence='{{ evidence }}'
now=$(cat "$proc/sys/kernel/random/boot_id")
mkdir -p "$folder"
find "$folder" -type f -mmin +2880 -delete
( set -C; : > "$marker" ) 2> /dev/null || { echo "looked at before"; exit 0; }
keep || echo "no evidence was kept"
