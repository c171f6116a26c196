// A job's logs and chart. The stream says how long each log is and how many points there are; what is new is fetched
// from the byte where we stopped, so nothing is lost and nothing comes twice. Where a log is kept by a service, only it
// knows how long the log is: it is asked every few seconds, and for a minute more when the job has ended.
const stream = document.getElementById("stream");
const view = document.getElementById("log");
const pick = document.getElementById("log-pick");
const follow = document.getElementById("log-follow");
const base = `/api/jobs/${encodeURIComponent(view.dataset.job)}`;
const TAIL = 65536;
const KEEP = 400000;
let sizes = {};
let current = { task: "", first: 0, next: 0 };
let chosen = false;
let blamed = "";
const { title } = document;
let busy = false;
let ended = 0;

async function get(path, more = {}) {
  const reply = await fetch(base + path, { headers: { Accept: "application/json" }, ...more });
  if (!reply.ok) throw new Error((await reply.json()).detail ?? reply.statusText);
  return reply.json();
}

function fillPick() {
  const tasks = Object.entries(sizes).sort((a, b) => b[1][1] - a[1][1] || a[1][0] - b[1][0]);
  const known = [...pick.options].map((o) => o.value).join();
  if (known !== tasks.map(([task]) => task).join()) {
    pick.replaceChildren(...tasks.map(([task, [rank, attempt, node]]) =>
      new Option(`${view.dataset.rank} ${rank} · ${node} · ${view.dataset.attempt} ${attempt}`, task, false, task === current.task)));
  }
  const wanted = blamed in sizes ? blamed : tasks[0]?.[0];
  const newer = !chosen && follow.checked && wanted !== current.task && (wanted === blamed || sizes[wanted]?.[1] > (sizes[current.task]?.[1] ?? 0));
  if (wanted && (!current.task || newer)) open(wanted);
  if (!tasks.length && !current.task) view.textContent = view.dataset.empty;
}

function open(task) {
  current = { task, first: 0, next: 0, fresh: true };
  pick.value = task;
  view.textContent = "";
  document.getElementById("log-get").href = `${base}/logs/${encodeURIComponent(task)}/download`;
  pump();
}

async function pump() {
  if (busy || !current.task) return;
  busy = true;
  try {
    for (;;) {
      const mine = current;
      const query = mine.fresh ? `tail=${TAIL}` : `offset=${mine.next}`;
      const part = await get(`/logs/${encodeURIComponent(mine.task)}?${query}`);
      if (mine !== current) continue;
      if (mine.fresh) mine.first = part.offset;
      mine.fresh = false;
      if (!part.text) {
        if (!view.textContent) view.textContent = view.dataset.empty;
        break;
      }
      if (view.textContent === view.dataset.empty) view.textContent = "";
      append(part.text);
      mine.next = part.next;
      if (part.next >= part.size && !(sizes[mine.task]?.[3] > part.next)) break;  // it may have grown meanwhile
    }
  } catch (error) {
    console.warn(error);
  } finally {
    busy = false;
  }
}

function append(text) {
  view.append(text);
  while (view.childNodes.length > 1 && view.textContent.length > KEEP) {
    current.first += new TextEncoder().encode(view.firstChild.textContent).length;
    view.firstChild.remove();
  }
  if (follow.checked) view.scrollTop = view.scrollHeight;
}

async function earlier() {
  if (!current.task || current.first <= 0) return;
  const from = Math.max(0, current.first - TAIL);
  const part = await get(`/logs/${encodeURIComponent(current.task)}?offset=${from}&limit=${current.first - from}`);
  follow.checked = false;
  const height = view.scrollHeight;
  view.prepend(part.text);
  current.first = from;
  view.scrollTop = view.scrollHeight - height;
}

// A search that is no longer wanted is given up here, and the console stops it then.
let searching = new AbortController();

async function search(event) {
  event.preventDefault();
  const hits = document.getElementById("log-hits");
  const q = document.getElementById("log-q").value.trim();
  searching.abort();
  searching = new AbortController();
  hits.replaceChildren();
  hits.hidden = !q || !current.task;
  if (hits.hidden) return;
  const head = document.createElement("p");
  const said = document.createElement("span");
  hits.append(head);
  head.append(said, " ", button(hits.dataset.close, () => { searching.abort(); hits.hidden = true; }));
  await searchOn({ hits, q, said, head, task: current.task, signal: searching.signal }, 0, 0, 0);
}

async function searchOn(asked, after, offset, before) {
  const { hits, q, said, head, task, signal } = asked;
  const query = new URLSearchParams({ q, after, offset });
  const found = await get(`/logs/${encodeURIComponent(task)}/search?${query}`, { signal });
  const count = before + found.hits.length;
  hits.append(...found.hits.map((hit) => line(hit, q)));
  said.textContent = `${hits.dataset.found}: ${count}${found.more ? "+" : ""}`;
  if (!found.more) return;
  const part = document.createElement("span");
  part.textContent = ` ${hits.dataset.searched}: ${megabytes(found.offset)} / ${megabytes(found.size)} MiB `;
  const go = button(hits.dataset.on, () => {
    part.remove();
    go.remove();
    searchOn(asked, found.next, found.offset, count).catch(console.warn);
  });
  head.append(part, go);
}

function megabytes(bytes) {
  return (bytes / 1048576).toFixed(1);
}

function button(text, press) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.addEventListener("click", press);
  return made;
}

function line(hit, q) {
  const row = document.createElement("div");
  row.className = "hit";
  const number = document.createElement("span");
  number.textContent = hit.line;
  const text = document.createElement("div");
  const at = hit.text.toLowerCase().indexOf(q.toLowerCase());
  const mark = document.createElement("mark");
  mark.textContent = hit.text.slice(at, at + q.length);
  text.append(hit.text.slice(0, at), mark, hit.text.slice(at + q.length));
  row.append(number, text);
  return row;
}

pick.addEventListener("change", () => { chosen = true; open(pick.value); });
follow.addEventListener("change", () => { if (follow.checked) view.scrollTop = view.scrollHeight; });
const wrap = document.getElementById("log-wrap");
wrap.addEventListener("change", () => view.classList.toggle("whole", !wrap.checked));
view.addEventListener("wheel", () => {
  if (view.scrollTop + view.clientHeight < view.scrollHeight - 40) follow.checked = false;
}, { passive: true });
document.getElementById("log-more").addEventListener("click", () => earlier().catch(console.warn));
document.getElementById("log-search").addEventListener("submit", (event) => search(event).catch(console.warn));

stream.addEventListener("logs", (event) => {
  sizes = JSON.parse(event.detail.data);
  fillPick();
  if ((sizes[current.task]?.[3] ?? 0) > current.next) pump();
});
stream.addEventListener("state", (event) => {
  const { final, label, blamed: task } = JSON.parse(event.detail.data);
  ended = final ? ended || Date.now() : 0;
  document.title = `${label} · ${title}`;
  blamed = task;
  if (Object.keys(sizes).length) fillPick();
  const stopper = document.getElementById("stopper");
  if (stopper) { stopper.hidden = final; document.getElementById("retrier").hidden = !final; }
});

const poll = 1000 * Number(view.dataset.poll);
if (poll) {
  setInterval(() => {
    if (document.hidden || (ended && Date.now() - ended > 60000)) return;
    pump();
  }, poll);
}

// -- the chart: one line per attempt, over the training step ---------------------------------------------------------
const place = document.getElementById("chart");
const COLOURS = ["--run", "--ok", "--boot", "--wait", "--check", "--fail"];
let chart;
let points;

function draw() {
  chart?.destroy();
  chart = undefined;
  place.replaceChildren();
  if (!points?.step.length) {
    const empty = document.createElement("p");
    empty.className = "empty";
    empty.textContent = place.dataset.empty;
    place.append(empty);
    return;
  }
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const attempts = [...new Set(points.attempt)].sort((a, b) => a - b);
  const tables = attempts.map((attempt) => {
    const own = points.step.map((step, i) => [step, points.loss[i], points.attempt[i]]).filter((p) => p[2] === attempt).sort((a, b) => a[0] - b[0]);
    return [own.map((p) => p[0]), own.map((p) => p[1])];
  });
  const rem = parseFloat(style.fontSize);
  const axis = { font: `${0.75 * rem}px system-ui, sans-serif`, size: 2.4 * rem, stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
  chart = new uPlot({
    width: Math.max(220, place.clientWidth), height: (innerWidth >= 62 * 16 ? 22 : 14) * rem, scales: { x: { time: false } }, axes: [axis, { ...axis, size: 3.5 * rem }],
    legend: { live: false },
    series: [{ label: place.dataset.step }, ...attempts.map((attempt, i) => ({
      label: `${place.dataset.attempt} ${attempt}`, stroke: colour(COLOURS[i % COLOURS.length]), width: 2, dash: i % 2 ? [6, 4] : [], points: { show: false },
    }))],
  }, uPlot.join(tables), place);
  const last = points.step.length - 1;
  place.setAttribute("aria-description", `${place.dataset.step} ${points.step[last]}, ${points.loss[last].toFixed(4)}`);
}

async function loadPoints() {
  points = await get("/progress");
  draw();
}
stream.addEventListener("points", () => loadPoints().catch(console.warn));
// On a narrow screen the diagram is wider than its place: the state that counts comes into sight.
const diagram = document.getElementById("diagram");
const lit = diagram.querySelector(".state.now");
if (lit && diagram.scrollWidth > diagram.clientWidth) {
  const [box, frame] = [lit.getBoundingClientRect(), diagram.getBoundingClientRect()];
  diagram.scrollLeft += box.left + box.width / 2 - frame.left - frame.width / 2;
}
document.addEventListener("theme", draw);
let resizing;
addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(draw, 200); });
