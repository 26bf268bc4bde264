// Verify bundles with the client of sigstore-js: a request on stdin, one answer a bundle on stdout.
// request: {root, keys: {hint: PEM}, bundles: [{bundle, keyed}]}; answer: "ok" or the error's code.
const { readFileSync } = require("node:fs");
const { createPublicKey } = require("node:crypto");
const { bundleFromJSON } = require("@sigstore/bundle");
const { toSignedEntity, toTrustMaterial, Verifier } = require("@sigstore/verify");
const { TrustedRoot } = require("@sigstore/protobuf-specs");

const request = JSON.parse(readFileSync(0, "utf8"));
const keys = {};
for (const [hint, pem] of Object.entries(request.keys)) {
  keys[hint] = { publicKey: createPublicKey(pem), validFor: () => true };
}
const root = TrustedRoot.fromJSON(request.root);
const material = toTrustMaterial(root, (hint) => {
  if (!keys[hint]) throw Object.assign(new Error(`no key ${hint}`), { code: "PUBLIC_KEY_ERROR" });
  return keys[hint];
});
const answers = request.bundles.map(({ bundle, keyed, policy }) => {
  const none = { tlogThreshold: 0, ctlogThreshold: 0, timestampThreshold: 0 };
  try {
    const entity = toSignedEntity(bundleFromJSON(bundle));
    new Verifier(material, keyed ? none : {}).verify(entity, policy);
    return "ok";
  } catch (error) {
    return String(error.code || error.name);
  }
});
process.stdout.write(JSON.stringify(answers));
