"use strict";
// The page reads without this script; it adds the theme, sorting and filtering, and opens what a link names.
{
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const themes = ["auto", "light", "dark"];
  const kept = { get: () => { try { return localStorage.getItem("int8cal-theme"); } catch { return null; } },
    set: (name) => { try { localStorage.setItem("int8cal-theme", name); } catch { /* a page of a file may not store */ } } };
  const apply = (name) => {
    if (name === "auto") root.removeAttribute("data-theme"); else root.dataset.theme = name;
    button.textContent = `Theme: ${name}`;
    button.dataset.now = name;
    dispatchEvent(new Event("themed"));
  };
  button.addEventListener("click", () => {
    const next = themes[(themes.indexOf(button.dataset.now) + 1) % themes.length];
    kept.set(next);
    apply(next);
  });
  button.hidden = false;
  const stored = kept.get();
  apply(themes.includes(stored) ? stored : "auto");
}
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    const number = head.classList.contains("num") || "number" in head.dataset;
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
      const rows = [...body.rows].map((row) => [key(row), row]);
      rows.sort(([a], [b]) => {
        if (a === "" || b === "") return (a === "") - (b === ""); // what was not measured stays at the end
        const order = number ? a - b : a.localeCompare(b, "en", { numeric: true });
        return down ? -order : order;
      });
      body.append(...rows.map(([, row]) => row));
    });
    if (head.classList.contains("sqnr")) head.setAttribute("aria-sort", "ascending"); // as the page is written
  });
}
for (const input of document.querySelectorAll("input.filter")) {
  const rows = [...document.getElementById(input.getAttribute("aria-controls")).tBodies[0].rows];
  // of a long name the title has all
  const whole = (row) => [row.textContent, ...[...row.querySelectorAll("td.name [title]")].map((part) => part.title)].join(" ");
  const texts = rows.map((row) => whole(row).toLowerCase());
  const count = document.getElementById("layer-count");
  input.parentElement.hidden = false;
  const filter = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, index) => {
      row.hidden = !words.every((word) => texts[index].includes(word));
      shown += !row.hidden;
    });
    count.textContent = words.length ? `${shown} of ${rows.length}` : `${rows.length} layer${rows.length === 1 ? "" : "s"}`;
  };
  input.addEventListener("input", filter);
  filter();
}
for (const hint of document.querySelectorAll(".hint")) hint.hidden = false;
function reveal() {
  const target = document.getElementById(location.hash.slice(1));
  const fold = target && target.closest("details");
  if (fold && !fold.open) {
    fold.open = true;
    target.scrollIntoView();
  }
}
addEventListener("hashchange", reveal);
reveal();
