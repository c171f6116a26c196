# gpu-recovery look at task {{ task }}
# Run by the SSM agent as root: keep where the processes of a task wait, and what its NCCL says. It stops nothing.
task='{{ task }}'
( set -C; : > "$marker" ) 2> /dev/null || { echo "looked at before"; exit 0; }

# Whatever is asked may hang: none is awaited for longer than this, and of each answer only so much is kept.
for_at_most() {
  seconds=$1
  shift
  timeout -k 2 "$seconds" "$@" 2>&1 < /dev/null | head -c 1000000 || true
}

# Its containers; one of a task may only hold its network.
containers() {
  for id in $(for_at_most 10 docker ps -q --no-trunc); do
    if for_at_most 10 docker inspect "$id" | grep -q "task-arn.*/$task\""; then echo "$id"; fi
  done
}

stand() {
  echo "== process $1: $(tr '\0' ' ' < "$proc/$1/cmdline" | head -c 300)"
  for thread in $(ls "$proc/$1/task" | head -n 64); do
    at=$proc/$1/task/$thread
    echo "$(cat "$at/comm"): $(sed 's/.*) \(.\).*/\1/' "$at/stat") in $(cat "$at/wchan" || true)"
  done | sort | uniq -c
  if command -v py-spy > /dev/null; then for_at_most 8 py-spy dump --nonblocking --pid "$1"; fi
}

# Where the host has no py-spy: the one in the image that the watch runs from. Not the task's own, which may be anything.
lines_of_python() {
  if [ $# = 0 ] || command -v py-spy > /dev/null; then return; fi
  label=label=com.amazonaws.ecs.task-definition-family=$watch
  ours=$(for_at_most 10 docker ps -q --no-trunc --filter "$label" | head -n 1)
  if [ -z "$ours" ]; then return; fi
  image=$(for_at_most 10 docker inspect "$ours" | sed -n 's/^ *"Image": "\(sha256:[0-9a-f]*\)",*$/\1/p' | head -n 1)
  left=$((until - $(date +%s)))
  if [ -z "$image" ] || [ "$left" -le 0 ]; then return; fi
  for_at_most "$left" docker run --rm --pid host --network none --log-driver none --cap-add SYS_PTRACE \
    --entrypoint timeout "$image" "$left" sh -c '
    for pid; do
      echo "== process $pid, in Python"
      timeout 8 py-spy dump --nonblocking --pid "$pid" 2>&1
    done' - "$@"
}

# NCCL answers line by line, on the port that the task was told. Only its digits are taken from what a program says.
ras() {
  port=$(tr '\0' '\n' < "$proc/$1/environ" | sed -n 's/^NCCL_RAS_ADDR=.*:\([0-9]\{1,5\}\)$/\1/p' | head -n 1)
  for_at_most 25 nsenter -t "$1" -n bash -c '
    exec 3<> "/dev/tcp/127.0.0.1/$1" || exit 1
    for line in "CLIENT PROTOCOL 2" "TIMEOUT 15"; do
      printf "%s\n" "$line" >&3
      IFS= read -r -t 5 said <&3 || exit 1
    done
    printf "VERBOSE STATUS\n" >&3
    cat <&3' ras "${port:-28028}"
}

# PyTorch writes down its last collectives when a pipe of its own is written to. Inside the container: what a link there
# points to is none of the host's. A pipe that is opened for both never makes its writer wait for a reader.
flight_recorder() {
  for_at_most 15 docker exec "$1" sh -c '
    asked=
    for pipe in "${TORCH_NCCL_DEBUG_INFO_PIPE_FILE:-/tmp/nccl_trace_pipe_rank_}"*.pipe; do
      if [ -p "$pipe" ]; then echo 1 1<> "$pipe"; asked=yes; fi
    done
    if [ "$asked" ]; then sleep 8; fi  # 5 to 6 s on an H200
    set --
    for dump in "${TORCH_NCCL_DEBUG_INFO_TEMP_FILE:-/tmp/nccl_trace_rank_}"*; do
      if [ -f "$dump" ]; then set -- "$@" "$dump"; fi
    done
    if [ $# -gt 0 ]; then head -c 500000 "$@"; fi'
}

kept=$(mktemp -d)
trap 'rm -rf "$kept" "$kept.tar.gz"' EXIT
: > "$kept/stacks.txt"
until=$(($(date +%s) + 40))
all=
for id in $(containers); do
  pids=$(for_at_most 10 docker top "$id" -eo pid | grep -x '[0-9 ]*[0-9]' | head -n 64 || true)
  all="$all $pids"
  for pid in $pids; do
    [ "$(date +%s)" -lt "$until" ] || { echo "the rest was not asked" >> "$kept/stacks.txt"; break; }
    stand "$pid" >> "$kept/stacks.txt" 2> /dev/null || true
  done
  pid=$(echo "$pids" | head -n 1 | tr -d ' ')
  if [ -n "$pid" ] && [ ! -s "$kept/ras.txt" ]; then ras "$pid" > "$kept/ras.txt" 2> /dev/null || true; fi
  flight_recorder "$id" >> "$kept/flight-recorder"
done
until=$(($(date +%s) + 30)) # of its own: the questions before it may have taken all of theirs
lines_of_python $all >> "$kept/stacks.txt"
tar -czf "$kept.tar.gz" -C "$kept" .
for_at_most 30 curl -fsS -m 25 -T "$kept.tar.gz" "$evidence"
# SSM lists 2,500 characters of what is printed here. The sweeper reads there whom the ranks wait for.
if [ -s "$kept/ras.txt" ]; then
  sed -n -e '/^NCCL version/p' -e '/^Communicators/,$p' "$kept/ras.txt" | head -c 2300
  echo
fi
echo "looked at task $task"
