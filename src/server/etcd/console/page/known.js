// What is known of the cluster; views hear of news by its events: `status`, `lease` and `lost`.

export const known = Object.assign(new EventTarget(), { status: null, heard: 0, leaseAt: 0, problem: null, samples: [] });
