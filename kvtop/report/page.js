// The plots are in the page as drawings. Where there is room, each becomes a live one when it comes into view: drag and
// wheel move and stretch time, a click in a legend picks a line, the menu saves a file.
(() => {
  const wide = 900; // a live plot keeps its size: where it would not fit, the drawing, which shrinks, is the better one
  const options = {
    renderer: "svg", ast: true, actions: { export: true, source: false, compiled: false, editor: false },
    tooltip: { theme: matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light" },
  };
  // Tables of numbers come as CSV. Vega's own reader of it makes functions from text, which the page forbids.
  const unpack = (node) => {
    if (node === null || typeof node !== "object") return;
    if (node.format?.type !== "csv") return Object.values(node).forEach(unpack);
    const [columns, ...rows] = node.values.split("\n").map((line) => line.split(","));
    node.values = rows.map((row) => {
      return Object.fromEntries(columns.map((name, i) => [name, row[i] === "" ? null : Number(row[i])]));
    });
    delete node.format;
  };
  const wake = async (figure) => {
    const plot = figure.querySelector(".plot");
    const live = document.createElement("div");
    try {
      const spec = JSON.parse(figure.querySelector("script").textContent);
      unpack(spec);
      await vegaEmbed(live, spec, { ...options, downloadFileName: figure.id });
    } catch (error) {
      console.error(figure.id, error);
      return; // the drawing stays
    }
    plot.replaceChildren(live);
    plot.classList.add("live");
  };
  if (document.documentElement.clientWidth < wide) return;
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((each) => each.isIntersecting)) {
      seen.unobserve(entry.target);
      wake(entry.target);
    }
  }, { rootMargin: "300px" });
  document.querySelectorAll("figure").forEach((figure) => seen.observe(figure));
})();
