# gpu-recovery reboot key={{ key }}
# Run by the SSM agent as root: keep what a reboot wipes, leave a marker, ask for the reboot. Run again after it, tell.

# A shutdown that hangs, as it does on a process stuck in the driver, is ended by the kernel itself.
insist() {
  last="sleep 300; echo 1 > $proc/sys/kernel/sysrq; echo s > $proc/sysrq-trigger; sleep 5; echo b > $proc/sysrq-trigger"
  systemd-run --quiet --property=DefaultDependencies=no --property=KillMode=none sh -c "$last" 2> /dev/null ||
    setsid sh -c "$last" < /dev/null > /dev/null 2>&1 &
}

if [ -e "$marker" ]; then
  if [ "$(cat "$marker")" != "$now" ]; then
    echo "booted as $now"
    exit 0
  fi
else
  if [ -n "$evidence" ]; then keep || echo "no evidence was kept"; fi
  printf '%s' "$now" > "$marker.new"
  mv "$marker.new" "$marker"
  sync "$marker" "$folder"
fi
insist
echo "rebooting from $now"
exit 194
