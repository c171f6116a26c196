// Charts of nodes over time. One request every ten seconds while the page is seen; the history has no finer steps.
const COLOURS = ["--run", "--ok", "--boot", "--wait", "--check", "--fail", "--none", "--text"];
const EVERY_MS = 10000;
const clock = new Intl.DateTimeFormat(document.documentElement.lang, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const places = [...document.querySelectorAll("[data-charts]")].map((place) => ({ place, words: JSON.parse(place.dataset.words), drawn: [], last: "" }));
const range = document.getElementById("charts-range");

function says(place, text) {
  const line = document.createElement("p");
  line.className = "dim";
  line.textContent = text;
  place.replaceChildren(line);
}

function figure(chart, words) {
  const box = document.createElement("figure");
  const title = document.createElement("figcaption");
  title.textContent = words[chart.title] + (chart.unit ? ` (${chart.unit})` : "");
  const canvas = document.createElement("div");
  canvas.setAttribute("role", "img");
  const newest = chart.lines.map((line) => `${line.label} ${line.values.findLast((value) => value !== null) ?? "–"}`);
  canvas.setAttribute("aria-label", `${title.textContent}: ${newest.join(", ")}`);
  box.append(title, canvas);
  return [box, canvas];
}

function draw(chart, canvas) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const rem = parseFloat(style.fontSize);
  const axis = { font: `${0.72 * rem}px system-ui, sans-serif`, stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
  const top = Math.max(...chart.lines.flatMap((line) => line.values.filter((value) => value !== null)), 0);
  return new uPlot({
    width: Math.max(200, canvas.clientWidth), height: 9 * rem, legend: { live: false }, cursor: { points: { show: false } },
    scales: { x: { range: (_, first, last) => (chart.at.length > 1 ? [first, last] : [chart.at[0] - 30, chart.at[0] + 30]) }, y: { range: [0, chart.unit === "%" ? 100 : (top || 1) * 1.1] } },
    axes: [{ ...axis, size: 2.2 * rem, space: 5 * rem, values: (_, moments) => moments.map((at) => clock.format(at * 1000)) }, { ...axis, size: 3.2 * rem }],
    series: [{}, ...chart.lines.map((line, i) => ({
      label: line.label, stroke: colour(COLOURS[i % COLOURS.length]), width: 1.75, dash: i % 2 ? [5, 3] : [], spanGaps: false,
      points: { show: chart.at.length < 3, size: 5, fill: colour(COLOURS[i % COLOURS.length]) },
    }))],
  }, [chart.at, ...chart.lines.map((line) => line.values)], canvas);
}

function show(entry, data) {
  for (const old of entry.drawn) old.destroy();
  entry.drawn = [];
  const charts = data.charts.filter((chart) => chart.lines.length);
  if (!charts.length) {
    says(entry.place, data.elsewhere ? `${entry.place.dataset.elsewhere} ${data.elsewhere}` : entry.place.dataset.empty);
    return;
  }
  const made = charts.map((chart) => [chart, ...figure(chart, entry.words)]);
  entry.place.replaceChildren(...made.map(([, box]) => box));
  entry.drawn = made.map(([chart, , canvas]) => draw(chart, canvas));
}

async function load(entry, again) {
  try {
    const reply = await fetch(`${entry.place.dataset.charts}?seconds=${range?.value ?? 3600}`, { headers: { Accept: "application/json" } });
    if (!reply.ok) return;
    const text = await reply.text();
    if (text === entry.last && !again) return;
    entry.last = text;
    show(entry, JSON.parse(text));
  } catch (error) {
    console.warn(error);
  }
}

const all = (again) => { for (const entry of places) load(entry, again); };
const redraw = () => { for (const entry of places) if (entry.last) show(entry, JSON.parse(entry.last)); };
addEventListener("load", () => all(false));
setInterval(() => { if (!document.hidden) all(false); }, EVERY_MS);
range?.addEventListener("change", () => all(true));
document.addEventListener("theme", redraw);
let resizing;
addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(redraw, 200); });
