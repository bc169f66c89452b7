use super::*;

#[test]
fn a_bug_is_on_in_its_thread_until_it_is_dropped() {
    assert!(!is_on(Bug::AckTime));
    {
        let _planted = plant(&[Bug::AckTime, Bug::NoSpare]);
        assert!(is_on(Bug::AckTime));
        assert!(is_on(Bug::NoSpare));
        assert!(!is_on(Bug::NoFloor));
        assert!(was_reached(Bug::NoFloor));
        assert!(!was_reached(Bug::NoBurn));
        let elsewhere = std::thread::spawn(|| is_on(Bug::AckTime));
        assert!(!elsewhere.join().expect("it does not panic"));
    }
    assert!(!is_on(Bug::AckTime));
}

#[test]
fn names_lead_to_their_bugs() {
    for bug in Bug::ALL {
        assert_eq!(Bug::named(&bug.to_string()), Some(*bug));
    }
    assert_eq!(Bug::named("Nonsense"), None);
}
