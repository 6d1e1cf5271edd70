// SPDX-License-Identifier: Apache-2.0
// The search of this site runs in a Worker, and browsers refuse one to pages opened from a file. There it runs in a
// hidden frame instead, which looks like a Worker to both sides.
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inner = frame.contentWindow;
      inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
      inner.importScripts = (...urls) => urls.reduce((before, each) => before.then(() => load(inner, each)), Promise.resolve());
      this.inner = inner;
      this.loaded = load(inner, url);
    }

    postMessage(data) {
      this.loaded.then(() => this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data })));
    }

    terminate() {
      this.inner.frameElement.remove();
    }
  }

  const load = (inner, url) => new Promise((resolve, reject) => {
    const script = inner.document.createElement("script");
    script.onload = resolve;
    script.onerror = reject;
    script.src = new URL(url, document.baseURI).href;
    inner.document.head.append(script);
  });

  window.IFrameWorker = window.Worker = IFrameWorker;
}
