"use strict";
(function () {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const figures = read("figures");
  const root = document.documentElement;

  function colour(role) {
    const band = role.endsWith("-band");
    const name = "--" + role.slice(1).replace(/-band$/, "");
    const value = getComputedStyle(root).getPropertyValue(name).trim();
    if (!band) return value;
    const n = parseInt(value.slice(1), 16);
    return `rgba(${n >> 16},${(n >> 8) & 255},${n & 255},0.18)`;
  }
  function painted(value) {
    if (typeof value === "string") return value.startsWith("@") ? colour(value) : value;
    if (Array.isArray(value)) return value.map(painted);
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, painted(v)]));
    return value;
  }
  function layoutOf(figure, width) {
    const text = getComputedStyle(root).getPropertyValue("--text").trim();
    const names = figure.data.filter((t) => t.showlegend !== false && t.name).map((t) => t.name.length);
    let rows = names.length ? 1 : 0, used = 0;
    for (const size of names) {
      const entry = 58 + 6.4 * Math.min(40, size);
      if (used && used + entry > width - 76) { rows += 1; used = 0; }
      used += entry;
    }
    rows *= Math.max(0, ...names) > 40 ? 1.6 : 1.15;
    const layout = painted(figure.layout);
    const legendRoom = layout.showlegend === false ? 0 : Math.min(22 * rows, 260);
    return Object.assign(layout, {
      width: width,
      height: layout.height + legendRoom,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: text, size: width < 640 ? 11 : 13, family: getComputedStyle(document.body).fontFamily },
      margin: { l: 60, r: 16, t: 16, b: 56 + legendRoom },
      legend: { orientation: "h", x: 0, xanchor: "left", yref: "container", y: 0, yanchor: "bottom", itemwidth: 30 },
      hoverlabel: { align: "left" },
    });
  }
  function wrapped(text, size) {
    const lines = [""];
    for (const word of text.split(" ")) {
      if ((lines.at(-1) + " " + word).length > size && lines.at(-1)) lines.push("");
      lines[lines.length - 1] = (lines.at(-1) + " " + word).trim();
    }
    return lines.join("<br>");
  }
  function fitted(data, layout, width) {
    if (width >= 640) return;
    if (layout.yaxis && layout.yaxis.type === "category") {
      const names = [...new Set(data.flatMap((trace) => trace.y))];
      Object.assign(layout.yaxis, { tickvals: names, ticktext: names.map((name) => wrapped(name, 18)), tickfont: { size: 9 } });
      layout.height *= 1.15;
    }
    for (const trace of data) {
      if (trace.name) trace.name = wrapped(trace.name, 40);
      if (trace.text) trace.textfont = { size: 8 };
    }
  }
  function draw(node, width) {
    const figure = figures[node.dataset.figure];
    if (!figure) return;
    const space = width || node.clientWidth;
    const config = { displaylogo: false, responsive: false, displayModeBar: false, staticPlot: Boolean(width) };
    const data = painted(figure.data), layout = layoutOf(figure, space);
    fitted(data, layout, space);
    Plotly.react(node, data, layout, config).then(() => describe(node));
  }
  function describe(node) {
    node.querySelectorAll("svg").forEach((svg) => svg.setAttribute("aria-hidden", "true"));
  }
  const plots = () => document.querySelectorAll(".plot");
  const drawAll = (width) => plots().forEach((node) => draw(node, width));

  document.querySelectorAll("select[data-target]").forEach((select) => {
    select.addEventListener("change", () => {
      const node = document.getElementById(select.dataset.target);
      node.dataset.figure = select.value;
      node.setAttribute("aria-label", select.dataset.what + ": " + select.selectedOptions[0].textContent);
      document.querySelectorAll(`[data-follows="${select.id}"]`).forEach((part) => {
        part.hidden = part.dataset.figure !== select.value;
      });
      draw(node);
    });
  });
  document.querySelectorAll("button[data-zoom]").forEach((button) => {
    button.addEventListener("click", () => {
      const node = document.getElementById(button.dataset.target);
      const range = node._fullLayout.xaxis.range.slice();
      const [low, high] = range, width = high - low, step = { in: 0.25, out: -0.5, left: 0, right: 0, all: 0 }[button.dataset.zoom];
      const shift = { left: -0.25, right: 0.25 }[button.dataset.zoom] || 0;
      if (button.dataset.zoom === "all") return Plotly.relayout(node, { "xaxis.autorange": true });
      Plotly.relayout(node, { "xaxis.range": [low + width * (step + shift), high - width * (step - shift)] });
    });
  });
  function save(name, url) {
    const link = document.createElement("a");
    link.href = url;
    link.download = name;
    link.click();
  }
  function button(text, title, action) {
    const made = document.createElement("button");
    made.type = "button";
    made.className = "small";
    made.textContent = text;
    made.title = title;
    made.addEventListener("click", action);
    return made;
  }
  plots().forEach((node) => {
    const tools = document.createElement("div");
    tools.className = "tools after";
    tools.append(button("PNG", "Save this plot as a picture", () => {
      const size = { width: node._fullLayout.width, height: node._fullLayout.height, scale: 2 };
      Plotly.toImage(node, { format: "png", ...size }).then((url) => save(node.id + ".png", url));
    }));
    node.after(tools);
  });
  function rowsOf(table) {
    return [...table.rows].map((row) => [...row.cells].map((cell) => cell.dataset.value || cell.innerText.trim()));
  }
  function quoted(text) {
    const plain = String(text).replace(/\s+/g, " ");
    const safe = /^[=+@\t]|^-(?![\d.])/.test(plain) ? "'" + plain : plain;
    return /[",]/.test(safe) ? '"' + safe.replace(/"/g, '""') + '"' : safe;
  }
  function key(cell) {
    const value = cell.dataset.value !== undefined ? Number(cell.dataset.value) : parseFloat(cell.innerText.replace(/,/g, "").replace(/^±\s*/, ""));
    return Number.isNaN(value) ? cell.innerText.trim() : value;
  }
  function sortBy(table, column, heading) {
    const down = heading.getAttribute("aria-sort") === "ascending";
    table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const body = table.tBodies[0];
    const order = (a, b) => {
      const one = key(a.cells[column]), two = key(b.cells[column]);
      if (typeof one === typeof two) return typeof one === "number" ? one - two : one.localeCompare(two);
      return typeof one === "number" ? -1 : 1;
    };
    [...body.rows].sort((a, b) => (down ? order(b, a) : order(a, b))).forEach((row) => body.append(row));
  }
  document.querySelectorAll("table").forEach((table, number) => {
    const names = [...table.tHead.rows[0].cells];
    if (table.tBodies[0].rows.length > 1 && !table.dataset.ordered)
      names.forEach((heading, column) => {
        const label = heading.textContent;
        heading.textContent = "";
        heading.append(button(label, "Sort by " + label, () => sortBy(table, column, heading)));
      });
    const tools = document.createElement("div");
    tools.className = "tools after";
    tools.append(button("CSV", "Save this table", () => {
      const text = rowsOf(table).map((row) => row.map(quoted).join(",")).join("\n") + "\n";
      const section = table.closest("section");
      save((section ? section.id : "table") + "-" + number + ".csv", "data:text/csv;charset=utf-8," + encodeURIComponent(text));
    }));
    (table.closest(".scroll") || table).after(tools);
  });
  const theme = document.getElementById("theme");
  theme.addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    theme.textContent = dark ? "Dark colours" : "Light colours";
    drawAll();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll());
  let before, folded = [];
  window.addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    folded = [...document.querySelectorAll(".findings details:not([open])")];
    folded.forEach((part) => { part.open = true; });
    drawAll(680);
  });
  window.addEventListener("afterprint", () => {
    if (before) root.dataset.theme = before; else delete root.dataset.theme;
    folded.forEach((part) => { part.open = false; });
    drawAll();
  });
  let waiting;
  window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => drawAll(), 150); });
  drawAll();
  root.dataset.ready = "yes";
})();
