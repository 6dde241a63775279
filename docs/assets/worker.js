// Browsers load no Worker from a file:// page. There a hidden frame runs the search script, under the name by which that
// script knows that it is in a frame: its importScripts then returns a promise.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      const load = (source) => new Promise((loaded, failed) => {
        const script = inside.document.createElement("script");
        Object.assign(script, {src: new URL(source, address).href, onload: loaded, onerror: failed});
        inside.document.body.append(script);
      });
      inside.importScripts = (...sources) => sources.reduce((before, next) => before.then(() => load(next)), Promise.resolve());
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", {data});
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      address = new URL(address, location.href).href;
      this.ready = load(address);
      this.inside = inside;
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", {data})));
    }
    terminate() {}
  };
}
// A word with leading dashes is an option here, and lunr would leave out every page that has it. The page sends each query to
// its worker as a message of type 2.
const words = (query) => query.replace(/(^|\s)--?(?=\w)/g, "$1");
window.Worker = class extends window.Worker {
  postMessage(message, ...rest) {
    super.postMessage(message?.type === 2 ? {...message, data: words(message.data)} : message, ...rest);
  }
};
window.IFrameWorker &&= window.Worker;
