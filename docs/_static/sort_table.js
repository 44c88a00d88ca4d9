// A click on a column's name sorts the table's rows by it; a second click turns the order round.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const value = (row, column) => row.cells[column].textContent.trim();
    table.querySelectorAll("thead th").forEach((head, column) => {
      const button = document.createElement("button");
      const text = head.querySelector("p") || head;
      button.append(...text.childNodes);
      text.append(button);
      button.addEventListener("click", () => {
        const descending = head.getAttribute("aria-sort") === "ascending";
        const sign = descending ? -1 : 1;
        const compare = (a, b) => {
          const [x, y] = [value(a, column), value(b, column)];
          if (!x || !y) return (x ? 0 : 1) - (y ? 0 : 1); // empty cells stay last
          return sign * (isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y);
        };
        table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        body.append(...[...body.rows].sort(compare));
      });
    });
  }
});
