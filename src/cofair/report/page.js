"use strict";
(() => {
  const values = JSON.parse(document.getElementById("values").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)");
  const PRINTED = 660; // pixels between the margins of a printed page
  const NARROW = 480;
  let printing = false;

  // Plots: drawn when they are first seen, in the colours of the page.

  const inColours = (value, key) => {
    if (Array.isArray(value)) return key === "colorscale" ? value : value.map((item) => inColours(item, key));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, inColours(item, name)]));
    }
    const colour = typeof value === "string" && /color$/i.test(key || "");
    return colour && dark.matches && !printing ? (values.dark[value] ?? value) : value;
  };

  const draw = (element) => {
    const [group, k] = element.dataset.plot.split("/");
    const plot = inColours(values.plots[group][Number(k)]);
    const width = printing ? PRINTED : element.clientWidth;
    const height = Math.round(plot.layout.height * (printing ? 0.8 : 1)); // two of them fit on a printed page
    const layout = { ...plot.layout, width, height, dragmode: touch.matches ? false : "zoom" };
    const lines = plot.data.filter((trace) => trace.mode === "lines" && trace.showlegend !== false && !trace.fill);
    if (width < NARROW && layout.showlegend && lines.length > 1) {
      const rows = Math.ceil(lines.length / 5);
      layout.legend = { ...layout.legend, orientation: "h", x: 0, y: -0.22, yanchor: "top" };
      layout.height += 22 * (rows + 1);
    }
    if (width < NARROW && layout.showlegend && lines.length < 2) layout.margin = { ...layout.margin, t: 60 };
    const config = {
      displaylogo: false, responsive: false, displayModeBar: touch.matches ? false : "hover",
      modeBarButtons: [["toImage", "resetScale2d"]],
      toImageButtonOptions: { filename: element.closest("figure").dataset.key, scale: 2 },
    };
    element.style.minHeight = `${layout.height}px`;
    const drawn = Plotly.react(element, plot.data, layout, config);
    element.dataset.drawn = "yes";
    if (plot.data.some((trace) => trace.meta === "named")) nameThePoints(element, plot);
    return drawn;
  };

  // Names beside points that cover neither each other nor the points; the most crowded point chooses first.
  const nameThePoints = (element, plot) => {
    const { xaxis, yaxis } = element._fullLayout;
    const background = plot.layout.hoverlabel.bgcolor;
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    const trace = plot.data.find((one) => one.meta === "named");
    const at = trace.x.map((x, k) => [xaxis.l2p(x), yaxis.l2p(trace.y[k])]);
    const taken = at.map(([x, y]) => [x - 6, y - 6, x + 6, y + 6]);
    at.forEach(([x, y], k) => {
      const across = trace.error_x ? Math.abs(xaxis.l2p(trace.x[k] + trace.error_x.array[k]) - x) : 0;
      const up = trace.error_y ? Math.abs(yaxis.l2p(trace.y[k] + trace.error_y.array[k]) - y) : 0;
      taken.push([x - across, y - 0.5, x + across, y + 0.5], [x - 0.5, y - up, x + 0.5, y + up]);
    });
    const overlap = (a, b) =>
      Math.max(0, Math.min(a[2], b[2]) - Math.max(a[0], b[0])) * Math.max(0, Math.min(a[3], b[3]) - Math.max(a[1], b[1]));
    const near = (k) => at.filter(([x, y]) => Math.hypot(x - at[k][0], y - at[k][1]) < 60).length;
    const plain = (text) => new DOMParser().parseFromString(text, "text/html").body.textContent;
    const order = at.map((_, k) => k).sort((a, b) => near(b) - near(a));
    const annotations = order.map((k) => {
      const width = pen.measureText(plain(trace.text[k])).width + 6, height = 16;
      let best = null, least = Infinity;
      for (const ring of [12, 20, 30, 42, 56, 72, 90]) {
        for (let degrees = 0; degrees < 360; degrees += 30) {
          const across = Math.cos((degrees * Math.PI) / 180), up = Math.sin((degrees * Math.PI) / 180);
          const ax = across * (ring + width / 2 - 4), ay = -up * ring;
          const [x, y] = [at[k][0] + ax, at[k][1] + ay];
          const box = [x - width / 2, y - height / 2, x + width / 2, y + height / 2];
          const outside = Math.max(0, -box[0]) + Math.max(0, box[2] - xaxis._length) + Math.max(0, -box[1]) +
            Math.max(0, box[3] - yaxis._length);
          const cost = taken.reduce((sum, other) => sum + overlap(box, other), 0) + 50 * outside + ring / 4;
          if (cost < least) [least, best] = [cost, { ax, ay, box, ring }];
        }
      }
      taken.push(best.box);
      const font = { size: 12, color: plot.layout.font.color };
      const [x, y, text] = [trace.x[k], trace.y[k], trace.text[k]];
      const line = { arrowhead: 0, arrowwidth: best.ring > 20 ? 0.7 : 0.1, arrowcolor: plot.layout.xaxis.tickfont.color };
      return { x, y, text, font, ax: best.ax, ay: best.ay, showarrow: true, standoff: 5, borderpad: 0, bgcolor: background, opacity: 0.9, ...line };
    });
    Plotly.relayout(element, { annotations });
  };

  const seen = () => [...document.querySelectorAll("[data-plot]")].filter((element) => !element.closest("[hidden]"));
  const drawNew = () => { // one after the other, so that the page answers in between
    const next = seen().find((element) => !element.dataset.drawn);
    if (!next) return;
    draw(next);
    setTimeout(drawNew);
  };
  const drawAll = () => {
    document.querySelectorAll("[data-drawn]").forEach((element) => delete element.dataset.drawn);
    seen().forEach(draw);
  };

  let width = innerWidth, waiting = 0;
  addEventListener("resize", () => {
    if (innerWidth === width || printing) return;
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(drawAll, 150);
  });
  dark.addEventListener("change", drawAll);
  addEventListener("beforeprint", () => {
    printing = true;
    document.querySelectorAll("details:not([open])").forEach((one) => { one.open = one.dataset.opened = true; });
    drawAll();
  });
  addEventListener("afterprint", () => {
    printing = false;
    document.querySelectorAll("[data-opened]").forEach((one) => { one.open = false; delete one.dataset.opened; });
    drawAll();
  });

  // One method at a time.

  const choose = document.getElementById("choose");
  const show = (k) => {
    document.querySelectorAll("[data-method]").forEach((one) => { one.hidden = one.dataset.method !== String(k); });
    if (choose) choose.value = k;
    drawNew();
  };
  choose?.addEventListener("change", () => show(choose.value));
  document.querySelectorAll("[data-choose]").forEach((link) =>
    link.addEventListener("click", () => show(link.dataset.choose)));

  // The table sorts by a click on a heading: numbers from the largest first, undefined always last.

  document.querySelectorAll("table.comparison").forEach((table) => {
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, column) => heading.querySelector("button")?.addEventListener("click", () => {
      const numeric = heading.classList.contains("number");
      const before = heading.getAttribute("aria-sort");
      const direction = before === "none" ? (numeric ? "descending" : "ascending")
        : before === "ascending" ? "descending" : "ascending";
      headings.forEach((other) => other.setAttribute("aria-sort", other === heading ? direction : "none"));
      const sign = direction === "ascending" ? 1 : -1;
      const value = (row) => row.cells[column].dataset.value;
      const compared = (a, b) => {
        if (!numeric) return sign * value(a).localeCompare(value(b));
        if (!value(a) || !value(b)) return (value(b) ? 1 : 0) - (value(a) ? 1 : 0);
        return sign * (Number(value(a)) - Number(value(b)));
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compared));
    }));
  });

  // Many clients: a table of those whose name is searched for.

  const MOST = 50;
  Object.entries(values.clients).forEach(([group, { columns, text }]) => {
    const body = document.querySelector(`[data-rows="${group}"]`);
    const said = document.querySelector(`[data-count="${group}"]`);
    const field = document.querySelector(`[data-search="${group}"]`);
    const list = () => {
      const wanted = field.value.trim().toLowerCase();
      const found = columns[0].map((_, k) => k).filter((k) => columns[0][k].toLowerCase().includes(wanted));
      body.replaceChildren(...found.slice(0, MOST).map((k) => {
        const row = document.createElement("tr");
        columns.forEach((column, j) => {
          const cell = document.createElement(j ? "td" : "th");
          cell.textContent = column[k];
          if (!j) cell.scope = "row";
          if (!text.includes(j)) cell.className = "number";
          row.append(cell);
        });
        return row;
      }));
      said.textContent = found.length > MOST ? `The first ${MOST} of ${found.length}, by contribution.`
        : `${found.length} found.`;
    };
    field.addEventListener("input", list);
    list();
  });

  drawNew();
})();
