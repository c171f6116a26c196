// The form of a new job: a template fills the command or the script, a file fills the script, and as soon as a field
// is left, what is wrong is told beside it, or the preview shows what would be sent.
const form = document.getElementById("job-form");

// Pressing the button twice, or sending the form again, submits one job.
const once = document.getElementById("once");
const renew = () => { once.value = crypto.randomUUID?.() ?? String(Date.now() + Math.random()); };
renew();
form.addEventListener("input", renew);

for (const select of document.querySelectorAll("[data-template]")) {
  select.addEventListener("change", () => {
    if (!select.value) return;
    document.getElementById(select.dataset.template).value = select.value;
    examine();
  });
}

document.getElementById("upload")?.addEventListener("change", async (event) => {
  const file = event.target.files[0];
  const problem = document.getElementById("upload-problem");
  problem.hidden = true;
  if (!file) return;
  if (file.size > Number(event.target.dataset.largest)) {
    problem.textContent = `${file.name}: ${Math.ceil(file.size / 1024)} KiB > ${event.target.dataset.largest / 1024} KiB`;
    problem.hidden = false;
    event.target.value = "";
    return;
  }
  document.getElementById("f-script_text").value = await file.text();
  examine();
});

// -- problems beside their fields ------------------------------------------------------------------------------------
const touched = new Set();

function mark(key, text) {
  const place = document.getElementById(`p-${key}`);
  if (!place) return;
  place.textContent = text;
  place.hidden = !text;
  const field = document.getElementById(`f-${key}`);
  if (text) field?.setAttribute("aria-invalid", "true");
  else field?.removeAttribute("aria-invalid");
}

function tell(found, only) {
  for (const place of form.querySelectorAll(".wrong[id^=p-]")) {
    const key = place.id.slice(2);
    if (!only || only.has(key)) mark(key, found[key] ?? "");
  }
}

function problemsIn(root) {
  const found = {};
  for (const item of root.querySelectorAll("[data-problem]")) {
    const key = item.dataset.problem;
    found[key] = found[key] ? `${found[key]} ${item.textContent}` : item.textContent;
  }
  return found;
}

const preview = document.getElementById("preview");
const invitation = [...preview.childNodes];
let asked = 0;

// With `all`, every problem is told; otherwise only those of fields that the person has been in.
async function examine(all = false) {
  const mine = ++asked;
  try {
    const body = new URLSearchParams(new FormData(form));
    const reply = await fetch("/jobs/new/preview", { method: "POST", body, headers: { Accept: "text/html" } });
    const text = await reply.text();
    if (!reply.ok || mine !== asked) return;
    const page = new DOMParser().parseFromString(text, "text/html");
    const found = problemsIn(page);
    tell(found, all ? undefined : touched);
    if (!Object.keys(found).length) document.getElementById("refused")?.remove();
    preview.replaceChildren(...(all || !Object.keys(found).length ? page.body.childNodes : invitation));
  } catch (error) {
    console.warn(error);
  }
}

form.addEventListener("change", (event) => {
  if (!event.target.name) return;
  if (event.target.type !== "radio") touched.add(event.target.name);
  examine();
});
document.getElementById("look").addEventListener("click", () => examine(true));

// In the editor the tab key indents; Escape gives it back to the keyboard's way through the page.
const editor = document.querySelector(".editor");
let caught = true;
editor?.addEventListener("keydown", (event) => {
  if (event.key === "Escape") caught = false;
  if (event.key !== "Tab" || event.shiftKey || !caught) return;
  event.preventDefault();
  editor.setRangeText("    ", editor.selectionStart, editor.selectionEnd, "end");
});
editor?.addEventListener("focus", () => { caught = true; });
