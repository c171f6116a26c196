# What a host knows of itself, asked and sent away within 90 s, whatever hangs.
now=$(cat "$proc/sys/kernel/random/boot_id")

# A question that hangs in the driver cannot be killed: each is asked beside the others, and none is awaited for long.
ask() {
  name=$1
  shift
  questions=$((questions + 1))
  ( { "$@" 2>&1 || true; } | tail -c 4000000 > "$kept/$name"; : > "$kept/.answered.$name" ) < /dev/null > /dev/null 2>&1 &
}

# 0 once there are so many files of this name, 1 when the time is over.
await() {
  seconds=$3
  while [ "$(find "$kept" -name "$1" | wc -l)" -lt "$2" ]; do
    [ "$seconds" -gt 0 ] || return 1
    seconds=$((seconds - 1))
    sleep 1
  done
}

containers() {
  docker ps -a -n 12
  for id in $(docker ps -aq -n 12); do
    echo "== $id"
    docker logs --tail 200 "$id"
  done
}

keep() {
  kept=$(mktemp -d) || return 1
  questions=0
  { date -u +%Y-%m-%dT%H:%M:%SZ; uname -a; cat "$proc/uptime"; echo "$now"; } > "$kept/host.txt"
  ask kernel.txt sh -c 'journalctl -k -b --no-pager -n 20000 || dmesg'
  ask nvidia-smi.txt nvidia-smi -q
  ask dcgm.txt dcgmi health -c
  ask processes.txt ps -eo pid,stat,wchan:32,etime,args
  ask containers.txt containers
  await '.answered.*' "$questions" 40 || echo "some questions were not answered in time"
  tar -czf "$kept.tar.gz" --exclude '.answered.*' -C "$kept" . || return 1
  ( curl -fsS -m 25 -T "$kept.tar.gz" "$evidence" && : > "$kept/.answered.sent" ) < /dev/null > /dev/null 2>&1 &
  sent=0
  await .answered.sent 1 30 || sent=1
  rm -rf "$kept" "$kept.tar.gz"
  [ "$sent" = 0 ] || { echo "the evidence could not be sent"; return 1; }
  echo "evidence kept"
}
