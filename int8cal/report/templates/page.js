"use strict";
// The page reads well without this script; it adds sorting, filtering, and opening a folded histogram that a link names.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
      const number = head.classList.contains("num");
      const rows = [...body.rows].map((row) => [key(row), row]);
      rows.sort(([a], [b]) => {
        if (number && (a === "" || b === "")) return (a === "") - (b === ""); // what was not measured stays at the end
        const order = number ? a - b : a.localeCompare(b, "en", { numeric: true });
        return down ? -order : order;
      });
      body.append(...rows.map(([, row]) => row));
    });
  });
}
for (const input of document.querySelectorAll("input.filter")) {
  const rows = [...document.getElementById(input.getAttribute("aria-controls")).tBodies[0].rows];
  input.hidden = false;
  input.addEventListener("input", () => {
    const wanted = input.value.toLowerCase();
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
}
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
