"use strict";
// The newest decisions as they come. Without this script the page shows those of when it
// was loaded. What strangers wrote is only ever text here.
(() => {
  const rows = document.getElementById("rows");
  const live = document.getElementById("live");
  if (!rows || !live || rows.dataset.page !== "1") {
    if (live) live.parentElement.hidden = true;
    return;
  }
  const status = document.getElementById("status");
  const problem = document.getElementById("problem");
  const cell = (tag, text) => {
    const made = document.createElement(tag);
    made.textContent = text;
    return made;
  };
  const rowOf = (line) => {
    const tr = document.createElement("tr");
    tr.dataset.id = line.id;
    const time = document.createElement("td");
    const link = cell("a", line.time);
    link.href = "/console/line?id=" + encodeURIComponent(line.id);
    link.setAttribute("aria-label", "explain the decision of " + line.time + ", " + line.result);
    time.append(link);
    const result = document.createElement("td");
    const mark = cell("span", line.result + " " + line.status);
    mark.className = "result " + line.result;
    result.append(mark);
    tr.append(time, result, cell("td", line.who), cell("td", line.what), cell("td", line.why), cell("td", line.from));
    return tr;
  };
  const show = (answer) => {
    const before = new Map();
    for (const tr of rows.children) before.set(tr.dataset.id, tr);
    let added = 0;
    // A row that stays is moved, not made again, and the focus stays in it.
    const wanted = answer.rows.map((line) => {
      const old = before.get(line.id);
      if (old) {
        old.classList.remove("new");
        before.delete(line.id);
        return old;
      }
      added++;
      const tr = rowOf(line);
      tr.classList.add("new");
      return tr;
    });
    if (added === 0 && before.size === 0) return;
    for (const gone of before.values()) gone.remove();
    wanted.forEach((tr, i) => {
      if (rows.children[i] !== tr) rows.insertBefore(tr, rows.children[i] || null);
    });
    let text = answer.total + " decisions";
    if (answer.dropped) text += ", " + answer.dropped + " not noted for want of room";
    if (added) text += "; " + added + " new";
    status.textContent = text;
  };
  const tick = async () => {
    if (live.checked && !document.hidden) {
      try {
        const answer = await fetch("/console/rows.json" + location.search, {cache: "no-store"});
        if (!answer.ok) throw new Error("the answer is " + answer.status);
        const found = await answer.json();
        show(found);
        problem.textContent = found.problem || "";
      } catch (fault) {
        problem.textContent = "Not live: " + fault.message;
      }
      problem.hidden = problem.textContent === "";
    }
    setTimeout(tick, 2000);
  };
  setTimeout(tick, 2000);
})();
