// Browsers give no web workers to pages that are opened from a disk. The search then runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.documentElement.append(frame)
      const inside = frame.contentWindow
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = inside.document.createElement("script")
      script.src = url
      this.loaded = new Promise(resolve => (script.onload = () => resolve(inside)))
      inside.document.body.append(script)
    }

    async postMessage(data) {
      const inside = await this.loaded
      inside.dispatchEvent(new inside.MessageEvent("message", { data }))
    }

    terminate() {}
  }
}
