// What every page needs: light and dark, "how long ago", the state of the live stream, and small menus.
const root = document.documentElement;

document.getElementById("theme")?.addEventListener("click", () => {
  const dark = root.dataset.theme === "dark" || (root.dataset.theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  root.dataset.theme = dark ? "light" : "dark";
  document.cookie = `theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=lax`;
  document.dispatchEvent(new Event("theme"));
});

const lang = root.lang === "en" ? "en-GB" : root.lang;
const words = new Intl.RelativeTimeFormat(lang, { numeric: "always", style: "short" });
const hours = new Intl.DateTimeFormat(lang, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const days = new Intl.DateTimeFormat(lang, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hour12: false });
function ago(seconds) {
  for (const [size, unit] of [[86400, "day"], [3600, "hour"], [60, "minute"]]) {
    if (Math.abs(seconds) >= size) return words.format(-Math.trunc(seconds / size), unit);
  }
  return words.format(-Math.trunc(seconds), "second");
}
function tellTimes() {
  const now = Date.now();
  for (const time of document.querySelectorAll("time[data-ago]")) {
    if (!time.title || time.dataset.for !== time.dateTime) {
      time.title = new Date(time.dateTime).toLocaleString(lang);
      time.dataset.for = time.dateTime;
    }
    const past = (now - Date.parse(time.dateTime)) / 1000;
    const text = time.dataset.over && past > 0 ? time.dataset.over : (time.dataset.before ?? "") + ago(past);
    if (time.textContent !== text) time.textContent = text;
  }
  for (const time of document.querySelectorAll("time[data-clock]")) {
    if (time.dataset.for === time.dateTime) continue;
    const at = new Date(time.dateTime);
    time.dataset.for = time.dateTime;
    time.title = at.toLocaleString(lang);
    const today = at.toDateString() === new Date(now).toDateString();
    time.textContent = today ? hours.format(at) : days.format(at);
  }
}
tellTimes();
setInterval(tellTimes, 1000);
document.addEventListener("htmx:after:swap", tellTimes);

const pulse = document.getElementById("pulse");
function live(on) {
  if (!pulse) return;
  pulse.className = on ? "pulse on" : "pulse off";
  pulse.textContent = on ? pulse.dataset.live : pulse.dataset.lost;
}
document.addEventListener("htmx:sse:after:connection", () => live(true));
document.addEventListener("htmx:sse:after:message", () => live(true));
document.addEventListener("htmx:sse:error", () => live(false));
document.addEventListener("htmx:sse:close", () => { if (!document.hidden) live(false); });

// Requests that scripts send carry the same token as the forms.
document.addEventListener("htmx:config:request", (event) => {
  const token = document.querySelector('meta[name="csrf"]')?.content;
  const headers = event.detail.ctx?.request?.headers;
  if (token && headers) headers["X-CSRF-Token"] = token;
});

// Parts of a form that are asked for only with a certain choice.
function showAsked() {
  for (const part of document.querySelectorAll("form [data-when]")) {
    const [name, value] = part.dataset.when.split("=");
    part.hidden = part.closest("form").elements[name].value !== value;
  }
}
document.addEventListener("change", showAsked);
document.addEventListener("asked", showAsked);
showAsked();

document.addEventListener("click", (event) => {
  if (event.target.closest("[data-close]")) event.target.closest("details")?.removeAttribute("open");
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    menu.removeAttribute("open");
    menu.querySelector("summary")?.focus();
  }
});
