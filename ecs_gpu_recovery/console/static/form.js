// The form of a new job: what is not asked for is hidden, a template fills the command, a file fills the script.
const form = document.getElementById("job-form");

function showAsked() {
  for (const part of form.querySelectorAll("[data-when]")) {
    const [name, value] = part.dataset.when.split("=");
    part.hidden = form.elements[name].value !== value;
  }
}
form.addEventListener("change", showAsked);
showAsked();

// Pressing the button twice, or sending the form again, submits one job.
const once = document.getElementById("once");
const renew = () => { once.value = crypto.randomUUID?.() ?? String(Date.now() + Math.random()); };
renew();
form.addEventListener("input", renew);

document.getElementById("template").addEventListener("change", (event) => {
  if (event.target.value) document.getElementById("f-command").value = event.target.value;
});

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
});

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
