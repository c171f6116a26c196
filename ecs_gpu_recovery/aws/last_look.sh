# gpu-recovery last look key={{ key }}
# Run by the SSM agent as root before the machine is taken away for good: keep what it knows. It changes nothing.
( set -C; : > "$marker" ) 2> /dev/null || { echo "looked at before"; exit 0; }
keep || { echo "no evidence was kept"; rm -f "$marker"; exit 1; }
